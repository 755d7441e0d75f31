"""An issuer of OAuth tokens: signed JSON Web Tokens, and the endpoint that issues them for a client secret.

https://datatracker.ietf.org/doc/html/rfc6749#section-4.4
"""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE = "kafka"
CLIENT_ID, CLIENT_SECRET = "pgsluice", "s3cret"
KEY_ID = "first"


class TokenIssuer:
    """Signs tokens for the client ``CLIENT_ID``."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self.given = 0
        """The number of tokens that the endpoint has issued."""

    def public_keys(self) -> str:
        """Return the JSON Web Key Set that verifies the tokens."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": KEY_ID,
            "n": _number(numbers.n),
            "e": _number(numbers.e),
        }
        return json.dumps({"keys": [key]})

    def token(self, lifetime_s: int = 3600) -> str:
        """Return a new token."""
        now = int(time.time())
        claims = {
            "sub": CLIENT_ID,
            "aud": AUDIENCE,
            "iss": "test",
            "iat": now,
            "exp": now + lifetime_s,
            "scope": "write",
        }
        header = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{_encoded(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    @contextmanager
    def endpoint(self, port: int = 0) -> Iterator[str]:
        """Provide the URL of the token endpoint, on this port or on any."""
        issuer = self
        expected = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                is_known = self.headers["Authorization"] == expected
                answer = {"access_token": issuer.token(), "token_type": "Bearer", "expires_in": 3600}
                issuer.given += is_known
                body = json.dumps(answer if is_known else {"error": "invalid_client"}).encode()
                self.send_response(200 if is_known else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_request(self, *_: object) -> None:
                """Log nothing."""

        with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
            thread = Thread(target=server.serve_forever, daemon=True)
            thread.start()
            yield f"http://127.0.0.1:{server.server_port}/token"
            server.shutdown()
            thread.join()


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
