"""The application: command line, daemon, HTTP server and log.

The only package that knows both the settings and the packages that they configure.
"""
