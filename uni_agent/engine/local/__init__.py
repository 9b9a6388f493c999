"""The inside of the embedded engine. Its modules import torch: only `EmbeddedBackend.start` may load them."""
