"""The creation of clients, and the meaning of their errors. Integration tests show that Kafka sends these errors."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from pgsluice.errors import ConfigError, Fenced, PermissionDenied, PgsluiceError, PoisonError, SinkUnavailable
from pgsluice.kafka.client import IDLE_REPORTS_MAX, OAUTH_S, STALE_S, ClientErrors, ClientOptions, failure

REFUSED = KafkaError(KafkaError._TRANSPORT, "Connection refused")
ALL_DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
PASSWORD = KafkaError(KafkaError._AUTHENTICATION, "Authentication failed")
TIMED_OUT = KafkaError(KafkaError._TIMED_OUT, "Timed out")

AWAY = {
    "event": "Kafka cannot be reached, or refuses us",
    "to_do": "check that the brokers run, and check kafka.bootstrap_servers and the credentials under kafka.client (or "
    "the password from kafka.password_file or kafka.password_command)",
    "log_level": "warning",
}
BACK = {"event": "Kafka answers again", "log_level": "info"}


class TestFailure:
    @pytest.mark.parametrize(
        ("code", "kind", "advice"),
        [
            (KafkaError._AUTHENTICATION, PermissionDenied, "Check the credentials"),
            (KafkaError.TOPIC_AUTHORIZATION_FAILED, PermissionDenied, "the user's ACLs"),
            (KafkaError.MSG_SIZE_TOO_LARGE, PoisonError, "Raise the topic's max.message.bytes"),
            (KafkaError.INVALID_RECORD, PoisonError, "cleanup.policy=compact"),
            (KafkaError.INVALID_TIMESTAMP, PoisonError, "kafka.timestamp"),
            (KafkaError.POLICY_VIOLATION, ConfigError, "[kafka] section"),
            (KafkaError._SSL, SinkUnavailable, ""),
            (KafkaError.INVALID_TRANSACTION_TIMEOUT, ConfigError, "Lower delivery.transaction_timeout"),
            (KafkaError._UNSUPPORTED_FEATURE, ConfigError, "needs no transactions"),
            (KafkaError._TRANSPORT, SinkUnavailable, ""),
            (KafkaError.INVALID_REPLICATION_FACTOR, SinkUnavailable, "Fewer brokers are up"),
            (KafkaError._FENCED, Fenced, "Another producer with our transactional.id"),
        ],
    )
    def test_an_error_is_retried_or_stops_the_process(self, code: int, kind: type[PgsluiceError], advice: str) -> None:
        for error in (KafkaError(code, "says Kafka"), KafkaException(KafkaError(code, "says Kafka"))):
            found = failure(error, "Doing this")
            assert type(found) is kind
            assert str(found).startswith(f"Doing this: says Kafka ({KafkaError(code).name()}).")
            assert advice in str(found)

    @pytest.mark.parametrize(
        ("words", "advice"),
        [
            ("SSL handshake failed: certificate verify failed: broker certificate", "Correct ssl.ca.location"),
            ("SSL routines::ssl/tls alert bad certificate: SSL alert number 42", "Check ssl.certificate.location"),
            ("SSL routines::ssl/tls alert certificate unknown: SSL alert number 46", "has expired"),
            ("SSL routines::sslv3 alert certificate expired", "has expired"),
            ("SSL routines::tlsv13 alert certificate required", "received none"),
            ("SSL routines::tlsv1 alert unknown ca", "does not accept the client's certificate"),
        ],
    )
    def test_failures_of_tls_are_retried_with_advice(self, words: str, advice: str) -> None:
        errors = ClientErrors()
        errors(KafkaError(KafkaError._SSL, words))
        with structlog.testing.capture_logs() as lines:
            errors(ALL_DOWN)
        for said in (str(failure(TIMED_OUT, "Asking", errors)), f"{lines[0]['reason']}. {lines[0]['to_do']}"):
            assert words in said
            assert advice in said
        assert type(failure(TIMED_OUT, "Asking", errors)) is SinkUnavailable

    def test_a_renewed_certificate_of_a_broker_is_reported(self) -> None:
        errors = ClientErrors()
        refused = KafkaError(KafkaError._SSL, "SSL handshake failed: certificate verify failed")
        with structlog.testing.capture_logs() as lines:
            for report in (REFUSED, ALL_DOWN, REFUSED, refused, refused):
                errors(report)
        assert [line["event"] for line in lines] == [AWAY["event"]] * 2
        assert "Correct ssl.ca.location" in lines[1]["to_do"]

    def test_credentials_that_change_are_tried_again(self) -> None:
        errors = ClientErrors(credentials_change=True)
        errors(PASSWORD)
        with pytest.raises(SinkUnavailable, match=r"Check the credentials .*kafka\.password_file"):
            errors.raise_if_denied("Asking")
        errors.raise_if_denied("Asking with new credentials")
        assert type(failure(PASSWORD, "Asking", errors)) is SinkUnavailable
        assert type(failure(PASSWORD, "Asking", ClientErrors())) is PermissionDenied

    def test_a_missing_token_is_not_a_refusal(self) -> None:
        """The client may still have a valid token, or get one when the token endpoint answers again."""
        now = 0.0
        errors = ClientErrors(clock=lambda: now)
        words = "Failed to acquire SASL OAUTHBEARER token: Failed to connect to 127.0.0.1:1"
        missing = KafkaError(KafkaError._AUTHENTICATION, words)
        errors(missing)
        errors.raise_if_denied("Asking")
        with structlog.testing.capture_logs() as lines:
            errors(ALL_DOWN)
        assert "sasl.oauthbearer.token.endpoint.url" in lines[0]["to_do"]
        for error in (missing, TIMED_OUT):
            found = failure(error, "Asking", errors)
            assert type(found) is SinkUnavailable
            assert "sasl.oauthbearer.token.endpoint.url" in str(found)
        errors.recovered()  # another client still has a token
        now = OAUTH_S - 1
        assert "sasl.oauthbearer.token.endpoint.url" in str(failure(TIMED_OUT, "Asking", errors))
        now = OAUTH_S
        assert "sasl.oauthbearer" not in str(failure(TIMED_OUT, "Asking", errors))

    def test_a_token_endpoint_can_refuse_the_client(self) -> None:
        words = 'Failed to acquire SASL OAUTHBEARER token: {"error": "invalid_client"}'
        errors = ClientErrors()
        errors(KafkaError(KafkaError._AUTHENTICATION, words))
        with pytest.raises(PermissionDenied, match=r"Check the credentials under kafka\.client"):
            errors.raise_if_denied("Asking")

    def test_the_report_of_a_callback_explains_why_there_is_no_token(self) -> None:
        errors = ClientErrors()
        for words in ("no credentials of AWS", "OAuth callback raised exception"):
            errors(KafkaError(KafkaError._AUTHENTICATION, f"Failed to acquire SASL OAUTHBEARER token: {words}"))
        unset = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "OAuth token not set within 10 seconds timeout")
        assert "token: no credentials of AWS" in str(failure(unset, "Asking", errors))

    def test_each_client_reads_its_credentials(self) -> None:
        given = iter(["first", "not an int"])
        options = ClientOptions({}, "test", credentials=lambda: {"socket.timeout.ms": next(given)})
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"socket\.timeout\.ms"):
                options.make(Producer)
        assert list(given) == []

    def test_files_that_cannot_be_used_are_refused(self) -> None:
        error = KafkaError(KafkaError._INVALID_ARG, "ssl.key.location failed: key values mismatch")
        found = failure(error, "Setting up a Kafka client")
        assert type(found) is ConfigError
        assert "belong together" in str(found)

    def test_a_time_out_names_the_last_report(self) -> None:
        errors = ClientErrors()
        assert str(failure(TIMED_OUT, "Asking", errors)) == "Asking: Timed out (_TIMED_OUT)."
        errors(REFUSED)
        found = failure(TIMED_OUT, "Asking", errors)
        assert type(found) is SinkUnavailable
        assert str(found) == "Asking: Timed out (_TIMED_OUT); last reported: Connection refused."

    def test_an_error_of_purged_records_names_the_last_report(self) -> None:
        errors = ClientErrors()
        errors(KafkaError(KafkaError._FENCED, "fenced"))
        found = failure(KafkaError(KafkaError._PURGE_QUEUE, "purged"), "Writing", errors)
        assert str(found).startswith("Writing: fenced (_FENCED). Another producer")

    def test_a_time_out_because_of_a_wrong_password_is_not_retried(self) -> None:
        errors = ClientErrors()
        errors(PASSWORD)
        found = failure(TIMED_OUT, "Asking", errors)
        assert type(found) is PermissionDenied
        assert str(found).startswith("Asking: Authentication failed (_AUTHENTICATION).")

    def test_an_answer_of_a_broker_is_quoted_without_earlier_reports(self) -> None:
        errors = ClientErrors()
        errors(PASSWORD)
        found = failure(KafkaError(KafkaError.NOT_COORDINATOR, "moved"), "Asking", errors)
        assert str(found) == "Asking: moved (NOT_COORDINATOR)."


class TestClientErrors:
    @pytest.mark.parametrize("reports", [(REFUSED, ALL_DOWN), (ALL_DOWN, REFUSED)])
    def test_kafka_is_reported_once_as_away_and_once_as_back(self, reports: tuple[KafkaError, ...]) -> None:
        now = 0.0
        errors = ClientErrors(clock=lambda: now)
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                now += 60
                for report in reports * 3:
                    errors(report)
                assert errors.is_away
                assert errors.last == REFUSED
                errors.recovered()
                errors.recovered()
                assert not errors.is_away
                assert errors.last is None
        assert lines == [{**AWAY, "reason": "Connection refused"}, BACK] * 3
        assert errors.counts.total() == 18

    def test_old_reports_may_come_late(self) -> None:
        """Log nothing about reports that come within ``STALE_S`` after an answer of Kafka.

        Every client queues its reports until it is polled, so these reports may be older than the answer.
        """
        now = 0.0
        errors = ClientErrors(clock=lambda: now)
        with structlog.testing.capture_logs() as lines:
            for report in (REFUSED, ALL_DOWN):
                errors(report)
            errors.recovered()
            now += STALE_S
            for report in (REFUSED, ALL_DOWN):
                errors(report)
        assert lines == [{**AWAY, "reason": "Connection refused"}, BACK]

    def test_the_failure_of_one_broker_of_several_is_not_reported(self) -> None:
        errors = ClientErrors()
        with structlog.testing.capture_logs() as lines:
            for _ in range(100):
                errors(REFUSED)
            errors.recovered()
        assert lines == []

    def test_idle_connections_may_be_closed(self) -> None:
        """Brokers close idle connections after ten minutes. Clients report this without a reason, so it is ignored."""
        errors = ClientErrors()
        with structlog.testing.capture_logs() as lines:
            for _ in range(10):
                for _ in range(IDLE_REPORTS_MAX):
                    errors(ALL_DOWN)
                errors.recovered()
        assert lines == []

    def test_repeated_failures_are_reported_even_without_a_reason(self) -> None:
        """For example, clients give no reason if the listener expects another security.protocol."""
        errors = ClientErrors()
        with structlog.testing.capture_logs() as lines:
            for _ in range(IDLE_REPORTS_MAX + 3):
                errors(ALL_DOWN)
        assert lines == [{**AWAY, "reason": "1/1 brokers are down"}]

    def test_refused_credentials_are_reported(self) -> None:
        errors = ClientErrors()
        errors.raise_if_denied("Waiting")
        errors(REFUSED)
        errors.raise_if_denied("Waiting")
        errors(PASSWORD)
        errors(ALL_DOWN)
        with pytest.raises(PermissionDenied, match=r"^Waiting: Authentication failed .* Check the credentials"):
            errors.raise_if_denied("Waiting")
        errors.recovered()
        errors.raise_if_denied("Waiting")

    def test_a_secret_in_an_error_of_librdkafka_is_masked(self) -> None:
        """If librdkafka refuses sasl.oauthbearer.config, it quotes the value from the first unknown word on."""
        errors = ClientErrors()
        client = ClientOptions(
            {
                "bootstrap.servers": "127.0.0.1:9",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "enable.sasl.oauthbearer.unsecure.jwt": "true",
                "sasl.oauthbearer.config": "hunter2=hunter3",
            },
            "pgsluice-shop",
            errors,
        ).make(Producer)
        with structlog.testing.capture_logs() as lines:
            while not errors.last or errors.last.code() != KafkaError._AUTHENTICATION:
                client.poll(0.1)
        assert errors.last.str().endswith("sasl.oauthbearer.config beginning at: ***")
        assert "hunter" not in str(lines)

    def test_clients_can_be_created_in_many_threads(self) -> None:
        errors, reports = ClientErrors(), 2_000
        with structlog.testing.capture_logs() as lines, ThreadPoolExecutor(8) as threads:
            for _ in range(reports):
                threads.submit(errors, ALL_DOWN)
                threads.submit(errors, REFUSED)
                threads.submit(errors.recovered)
        errors.recovered()
        assert errors.counts.total() == 2 * reports
        events = [line["event"] for line in lines]
        assert events == [AWAY["event"], BACK["event"]] * (len(events) // 2) + [AWAY["event"]] * (len(events) % 2)


class TestClientOptions:
    def test_an_unknown_property_is_refused(self) -> None:
        options = ClientOptions({"bootstrap.servers": "127.0.0.1:9", "no.such": "thing"}, "pgsluice-shop")
        with pytest.raises(ConfigError, match=r'No such configuration property: "no.such"'):
            options.make(AdminClient)

    def test_a_client_has_the_users_properties_and_its_own(self) -> None:
        options = ClientOptions({"bootstrap.servers": "127.0.0.1:9", "acks": "1"}, "pgsluice-shop")
        config = options.make(dict, {"acks": "all"})
        assert config.pop("logger").name == "pgsluice.kafka.client.log"
        assert config == {
            "bootstrap.servers": "127.0.0.1:9",
            "acks": "all",
            "client.id": "pgsluice-shop",
            "error_cb": options.errors,
        }

    @pytest.mark.parametrize(
        ("kind", "own"), [(Producer, {}), (Consumer, {"group.id": "pgsluice-shop"}), (AdminClient, {})]
    )
    def test_all_kinds_of_clients_report_errors(self, kind: Callable[[Any], Any], own: dict[str, Any]) -> None:
        options = ClientOptions({"bootstrap.servers": "127.0.0.1:9"}, "pgsluice-shop")
        client = options.make(kind, own)
        with structlog.testing.capture_logs() as lines:
            while not options.errors.is_away:
                client.poll(0.1)
        assert [line["event"] for line in lines] == [AWAY["event"]]
        assert "Connection refused" in lines[0]["reason"]

    def test_log_lines_of_librdkafka_have_level_debug(self, caplog: pytest.LogCaptureFixture) -> None:
        """Most log lines of librdkafka are harmless, such as those about unused properties."""
        properties = {"bootstrap.servers": "127.0.0.1:9", "compression.type": "lz4", "fetch.min.bytes": "1"}
        options = ClientOptions(properties, "pgsluice-shop")
        caplog.set_level(logging.INFO)
        options.make(AdminClient).poll(0)
        assert caplog.records == []
        caplog.set_level(logging.DEBUG)
        options.make(AdminClient).poll(0)
        assert {record.levelname for record in caplog.records} == {"DEBUG"}
        assert any("will be ignored by this producer instance" in record.getMessage() for record in caplog.records)
