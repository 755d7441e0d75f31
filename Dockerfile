# An image with the daemon, its compiled modules and the packages that it needs at run time. It does not contain the
# readers for Spark.
ARG PYTHON=3.13

FROM python:${PYTHON} AS build
WORKDIR /build
# The environment has no pip, because nothing is installed at run time.
RUN python3 -m venv --without-pip /opt/pgsluice && python3 -m venv tools
COPY deploy/image/build.lock deploy/image/runtime.lock ./
RUN tools/bin/pip install --no-cache-dir --quiet --no-deps --require-hashes -r build.lock \
    && tools/bin/pip --python /opt/pgsluice/bin/python3 install --no-cache-dir --quiet --no-deps --require-hashes -r runtime.lock
COPY LICENSE README.md pyproject.toml setup.py ./
COPY src/pgsluice src/pgsluice
# Without a compiler, the build would also succeed, but the package would be slow. So check that the compiled modules can
# be used. Remove the script pgsluice-spark, because it would not work without its modules, which are not copied.
RUN tools/bin/pip wheel --no-cache-dir --quiet --no-deps --no-build-isolation --wheel-dir wheels . \
    && tools/bin/pip --python /opt/pgsluice/bin/python3 install --no-cache-dir --quiet --no-deps wheels/*.whl \
    && rm /opt/pgsluice/bin/pgsluice-spark \
    && PGSLUICE_SPEEDUPS=require /opt/pgsluice/bin/python3 -c 'from pgsluice.native import speedups; speedups.check()'
# Debugging symbols are a fifth of the size. Do not strip modules that were patched to find their own libraries, because
# that would damage them.
RUN find /opt/pgsluice -name '*.cpython-*.so' -not -path '*/confluent_kafka/*' -not -path '*/psycopg_binary/*' \
        -exec strip --strip-unneeded {} +

FROM python:${PYTHON}-slim
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="pgsluice" \
      org.opencontainers.image.description="Change data capture from PostgreSQL to Apache Kafka" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/pgsluice /opt/pgsluice
# Create the directories for mounted files, because nothing can be created in a read-only root file system.
RUN install -d -m 0755 /etc/pgsluice /run/secrets \
    && install -d -o 65532 -g 65532 -m 0700 /var/lib/pgsluice/spill
# Other containers and the published port have to reach the HTTP server. PGSLUICE_SECRETS_DIR is not a secret, but the
# name of a directory.
# hadolint ignore=DL3064
ENV PATH=/opt/pgsluice/bin:$PATH \
    PGSLUICE_CONFIG=/etc/pgsluice/config.toml \
    PGSLUICE_SECRETS_DIR=/run/secrets \
    PGSLUICE_HTTP__LISTEN=0.0.0.0:8080
# The base image has the standard library only as source code, and nothing can be written at run time. Without this
# command, each start would compile the modules that it imports.
RUN python3 -c 'import pgsluice.app.cli, pgsluice.app.daemon'
USER 65532:65532
VOLUME /var/lib/pgsluice/spill
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["pgsluice", "health"]
ENTRYPOINT ["pgsluice"]
CMD ["run", "-c", "/etc/pgsluice/config.toml"]
