# docker build -t dphist .
# docker run --rm --network none --user "$(id -u):$(id -g)" -v "$PWD:/data" dphist release log.parquet ...
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
# The wheel, installed with the versions that the tests use; the extra draws the charts of reports.
RUN python -m venv /opt/dphist \
 && pip wheel --no-cache-dir --no-deps --wheel-dir wheels . \
 && /opt/dphist/bin/pip install --no-cache-dir --constraint constraints.txt "$(echo wheels/dphist-*.whl)[plot]"

FROM python:3.12-slim
COPY --from=build /opt/dphist /opt/dphist
RUN useradd --no-create-home --uid 10001 dphist \
 && mkdir /data \
 && chown dphist /data
ENV PATH=/opt/dphist/bin:$PATH
USER dphist
WORKDIR /data
VOLUME /data
ENTRYPOINT ["dphist"]
