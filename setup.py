"""The compiled modules; all else about the package stands in pyproject.toml.

Where there is no compiler the build goes on without them: `pgsluice version` says what runs.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(name, [f"src/{name.replace('.', '/')}.pyx"], optional=True)
        for name in ("pgsluice._rows", "pgsluice.kafka._runs", "pgsluice.pgoutput._copy")
    ]
)
