"""The application: command line, daemon, HTTP server and log.

Only this package knows both the settings and the packages that they configure.
"""
