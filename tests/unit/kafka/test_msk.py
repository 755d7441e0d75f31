import base64
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from confluent_kafka import KafkaError

from pgsluice.errors import ConfigError
from pgsluice.kafka.msk import token_callback


def test_a_token_is_signed_for_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret")
    reports: list[KafkaError] = []
    token, expires = token_callback("eu-central-1", reports.append)("")
    assert reports == []
    url = urlsplit(base64.urlsafe_b64decode(token + "==").decode())
    query = parse_qs(url.query)
    assert url.hostname == "kafka.eu-central-1.amazonaws.com"
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert "aws-secret" not in url.geturl()
    assert 0 < expires - time.time() <= 900


def test_the_reason_for_a_missing_token_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    reports: list[KafkaError] = []
    with pytest.raises(AttributeError):
        token_callback("eu-central-1", reports.append)("")
    (report,) = reports
    assert report.str() == "Failed to acquire SASL OAUTHBEARER token: no credentials of AWS were found"


def test_without_the_signer_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigError, match=r"pip install 'pgsluice\[aws\]'"):
        token_callback("eu-central-1", lambda _report: None)
