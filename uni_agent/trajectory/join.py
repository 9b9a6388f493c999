"""The parts of one logical trajectory, which compactions cut, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from uni_agent.trajectory.trajectory import Trajectory


def logical_trajectories(trajectories: Sequence[Trajectory]) -> list[tuple[Trajectory, ...]]:
    """Each trajectory in exactly one group; a group follows `continues` from its first part to its last.

    Several may continue one: the first that is not abandoned and of the same scenario goes on with it, the others start
    groups of their own, as do those that continue a trajectory which is not given. Groups are in the order of their
    first parts. Nothing is trained twice, since no two trajectories of a session train the same turn.

    Raises ValueError when ids repeat or trajectories continue each other in a circle.
    """
    by_id = {trajectory.id: trajectory for trajectory in trajectories}
    if len(by_id) != len(trajectories):
        raise ValueError("two trajectories have the same id")
    followers: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        before = trajectory.continues
        if before is not None and before in by_id:
            followers.setdefault(before, []).append(trajectory)
    next_of = {id_: min(found, key=lambda t: _rank(t, by_id[id_])) for id_, found in followers.items()}
    followed = {trajectory.id for trajectory in next_of.values()}
    groups: list[tuple[Trajectory, ...]] = []
    for trajectory in trajectories:
        if trajectory.id in followed:
            continue
        parts = [trajectory]
        while (following := next_of.get(parts[-1].id)) is not None:
            parts.append(following)
        groups.append(tuple(parts))
    if sum(map(len, groups)) != len(trajectories):
        raise ValueError("trajectories continue each other in a circle")
    return groups


def _rank(trajectory: Trajectory, before: Trajectory) -> tuple[bool, bool]:
    return trajectory.abandoned, trajectory.scenario != before.scenario
