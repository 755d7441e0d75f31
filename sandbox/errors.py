"""The errors of the sandbox. ``python -m sandbox`` prints only the message."""


class SandboxError(Exception):
    """The base class of the other errors. The messages are for users."""


class MissingPrerequisites(SandboxError):
    """This machine lacks prerequisites. The message lists all of them, and says how to install each."""


class FetchError(SandboxError):
    """A cache entry could not be made, usually because a download failed. The message has the program's output."""


class NoFreePort(SandboxError):
    """All ports that were tried are in use."""


class ServerError(SandboxError):
    """A server or one of its tools failed. The message ends with the last lines of its log."""
