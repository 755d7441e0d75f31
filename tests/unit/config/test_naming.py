import pytest

from pgsluice.config import naming


@pytest.mark.parametrize("glob", ["*.*", "public.orders", "public.*", "*.orders", 'a."b.c"'])
def test_globs_match_schema_and_table(glob: str) -> None:
    assert naming.check_glob(glob) == glob


@pytest.mark.parametrize("glob", ["orders", "*", ".orders", "public.", "", '"a.b'])
def test_globs_that_match_nothing_are_refused(glob: str) -> None:
    with pytest.raises(ValueError, match="must be a pattern of schema and table"):
        naming.check_glob(glob)


@pytest.mark.parametrize(
    "template",
    ["{prefix}.{schema}.{table}", "{prefix}_{table}-.{schema}", "{prefix}.{schema}..{table}", "{prefix}-orders"],
)
def test_valid_templates_are_accepted(template: str) -> None:
    assert naming.check_template(template) == template


@pytest.mark.parametrize("template", ["", "a b", "{database}.{table}", "{table", "{table!r}", "{}", "\u00e4"])
def test_templates_that_kafka_would_refuse_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="cannot name a topic"):
        naming.check_template(template)


def test_templates_in_which_topics_could_coincide_are_refused() -> None:
    with pytest.raises(ValueError, match="must have a dot between"):
        naming.check_template("{prefix}.{schema}_{table}")
    with pytest.raises(ValueError, match="must have a dot between"):
        naming.check_template("{prefix}.{table}{schema}")
    with pytest.raises(ValueError, match="repeats a placeholder"):
        naming.check_template("{prefix}.{table}.{schema}{table}")


@pytest.mark.parametrize("template", ["orders", "{schema}.{table}", "cdc.{prefix}.{table}", "{prefix}{schema}.{table}"])
def test_templates_that_could_name_another_pipelines_topics_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"must begin with \{prefix\}"):
        naming.check_template(template)


def test_names_of_slots_and_pipelines_are_checked() -> None:
    assert naming.check_slot_name("a" * 63) == "a" * 63
    assert naming.check_pipeline_name("shop_2") == "shop_2"
    for name in ("", "Shop", "shop-2", "a" * 55, "a\n"):
        with pytest.raises(ValueError, match="must be 1 to 54 lower-case letters, digits and underscores"):
            naming.check_pipeline_name(name)
    with pytest.raises(ValueError, match="must be 1 to 63"):
        naming.check_slot_name("a" * 64)


def test_prefixes_of_topics_are_checked() -> None:
    for prefix in ("shop", "Shop-2.eu_west", "a" * 150):
        assert naming.check_topic_prefix(prefix) == prefix
    for prefix in ("", ".", "shop.", ".shop", "a..b", "a b", "a" * 151):
        with pytest.raises(ValueError, match="must be at most 150 letters"):
            naming.check_topic_prefix(prefix)


@pytest.mark.parametrize("name", ["pgsluice", "pgsluice.example.com", "a_b.svc.cluster.local.", "10.0.0.1"])
def test_names_of_hosts_are_accepted(name: str) -> None:
    assert naming.check_host_name(name) == name


@pytest.mark.parametrize("name", ["", "http://a", "a:80", "*", "*.example.com", "a b", "a..b", "[::1]"])
def test_names_that_no_host_header_can_match_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a host name: write it without scheme, port and wildcard"):
        naming.check_host_name(name)
