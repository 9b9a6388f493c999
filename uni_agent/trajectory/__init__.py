"""One framework-neutral trajectory and its converters. See docs/trajectories.md.

The converters are modules of their own: `verl`, `tinker`, `rows` and `sft`.
"""

from uni_agent.trajectory.fit import fit
from uni_agent.trajectory.join import logical_trajectories
from uni_agent.trajectory.trajectory import Trajectory

__all__ = ["Trajectory", "fit", "logical_trajectories"]
