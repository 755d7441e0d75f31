from pathlib import Path

from pgsluice.config import Sources
from sandbox.demo.pipeline import configuration


def test_pgsluice_takes_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(configuration(5432, "127.0.0.1:9092", 8080))

    settings = Sources.read(str(file), {}, [], None).settings()

    assert settings.postgres.port == 5432
    assert settings.slot_name == "pgsluice_shop"
    assert settings.snapshot.mode == "initial"
    assert settings.kafka.bootstrap_servers == "127.0.0.1:9092"
    assert str(settings.http.listen) == "127.0.0.1:8080"
