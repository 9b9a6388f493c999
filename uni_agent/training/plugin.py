"""What verl imports in each of its processes (`VERL_USE_EXTERNAL_MODULES=uni_agent.training.plugin`).

Every part registers itself through verl's own registries. It runs inside `import verl`, so nothing here may cost: what
needs a module of verl is registered when that module is imported.
"""

from __future__ import annotations

from uni_agent.training import algorithms, cpu, trainer

algorithms.register()
trainer.register()
cpu.register()
