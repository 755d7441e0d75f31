"""The errors of the sandbox. ``python -m sandbox`` prints only the message."""


class SandboxError(Exception):
    """The base class of the other errors. The message is for users."""


class MissingPrerequisites(SandboxError):
    """This machine lacks a prerequisite. The message lists all missing ones, each with what to install."""


class FetchError(SandboxError):
    """Maven could not fetch the artifacts of the POM. The message is Maven's."""


class NoFreePort(SandboxError):
    """Every port that was tried is taken."""


class ServerError(SandboxError):
    """A server or one of its tools failed. The message ends with the last lines of its log."""
