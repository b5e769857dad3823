FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/ottla && /opt/ottla/bin/pip install --no-cache-dir .

FROM python:3.13-slim
LABEL org.opencontainers.image.title="Ottla" \
      org.opencontainers.image.description="A message queue that speaks the Kafka protocol" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/ottla /opt/ottla
RUN useradd --system --uid 10001 --home-dir /var/lib/ottla --create-home ottla
ENV PATH=/opt/ottla/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    # Clients connect to this address; set it to the host's name when they are elsewhere.
    OTTLA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092 \
    OTTLA_HTTP_LISTENER=0.0.0.0:9644
USER ottla
WORKDIR /var/lib/ottla
VOLUME /var/lib/ottla
EXPOSE 9092 9644
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9644/readyz', timeout=2)"]
ENTRYPOINT ["ottla"]
CMD ["start", "--listen", "0.0.0.0:9092", "--data-dir", "/var/lib/ottla/data"]
