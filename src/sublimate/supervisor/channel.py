"""The control channel lives in control/channel.py, below all three processes that use it."""

from ..control.channel import *  # noqa: F403
