"""Builds the compiled modules. Everything else about the package is in pyproject.toml.

If there is no compiler, the package is built without them. `pgsluice version` says whether they are used.
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
