"""Builds the compiled modules. Everything else about the package is in pyproject.toml.

Without a compiler, the package is built without the compiled modules. `pgsluice version` prints whether pgsluice uses
them.
"""

from setuptools import Extension, setup

PARTS = {"rows": ("buffer", "kinds", "records", "text", "binary", "whole"), "runs": (), "copy": ()}
"""Each compiled module, with the ``.pxi`` files that it includes."""

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
