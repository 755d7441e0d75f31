"""What can go wrong in the sandbox, apart from bugs; ``python -m sandbox`` prints the message alone."""


class SandboxError(Exception):
    """Root of the others; the message is for people."""


class MissingPrerequisites(SandboxError):
    """This machine lacks something; the message lists all that it lacks, each with what to install."""


class FetchError(SandboxError):
    """Maven could not get what the POM names; the message is Maven's."""


class NoFreePort(SandboxError):
    """Every port that was tried is taken."""


class ServerError(SandboxError):
    """A server or one of its tools failed; the message ends with the last lines of its log."""
