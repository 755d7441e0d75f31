from sandbox.installation import VERSIONS, target
from sandbox.postgres import DEFAULT_VERSION


def test_versions_are_those_that_pgsluice_supports() -> None:
    assert list(range(10, 19)) == VERSIONS
    assert DEFAULT_VERSION in VERSIONS


def test_a_version_has_its_profile_in_the_pom() -> None:
    assert target(17) == "postgres-17"
