"""The compiled modules. All else about the package is in pyproject.toml.

If there is no compiler, the build goes on without them. `pgsluice version` says what runs.
"""

from setuptools import Extension, setup

PARTS = {"rows": ("buffer", "kinds", "records", "text", "binary", "whole"), "runs": (), "copy": ()}
"""The files that each module includes."""

setup(
    ext_modules=[
        Extension(
            f"pgsluice.native.{name}",
            [f"src/pgsluice/native/{name}.pyx"],
            depends=[f"src/pgsluice/native/{part}.pxi" for part in parts],
            optional=True,
        )
        for name, parts in PARTS.items()
    ]
)
