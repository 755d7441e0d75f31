"""Unit tests of pgsluice_spark.config. test_cli tests the messages about wrong files."""

from pathlib import Path

import pytest

from pgsluice_spark.config import ConfigError, read

FILE = """
[pipeline]
prefix = "shop"
bootstrap_servers = "kafka:9092"
[pipeline.kafka_options]
"kafka.security.protocol" = "SSL"
[registry]
url = "http://pgsluice:8080"
[target]
path = "/lake/shop"
[spark]
"spark.ui.enabled" = false
"spark.sql.shuffle.partitions" = 4
"""


def test_a_configuration_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mirror.toml"
    secret = tmp_path / "secret"
    secret.write_text("a b\n")
    file.write_text(f'{FILE}[postgres]\npassword_file = "{secret}"\n')
    config = read(str(file))
    assert config.get("pipeline.kafka_options") == {"kafka.security.protocol": "SSL"}
    assert config.spark == {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    assert (list(config.tables), config.find("query.trigger", "x")) == (["*"], "x")
    assert (config.secret("postgres.password_file"), config.secret("registry.password_file")) == ("a b", None)
    with pytest.raises(ConfigError, match=r"mirror\.toml: query\.checkpoint is missing"):
        config.get("query.checkpoint")
    secret.unlink()
    with pytest.raises(ConfigError, match=r"postgres\.password_file: .*secret cannot be read: No such file"):
        config.secret("postgres.password_file")
