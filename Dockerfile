# One image for every process: the command selects which one runs (see docker-compose.yml).
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore

# A fixed number, so that files in a volume keep their owner from one image to the next.
RUN useradd --uid 10001 --create-home --home-dir /var/lib/overnight overnight

WORKDIR /usr/src/overnight

# Dependencies change less often than code, so they have a layer of their own.
COPY requirements/runtime.txt requirements/runtime.txt
RUN pip install --require-hashes --requirement requirements/runtime.txt

COPY pyproject.toml README.md LICENSE ./
COPY overnight overnight
COPY app app
COPY workers workers
RUN pip install --no-deps --no-build-isolation .

# Workers import handlers from here: copy or mount your modules into this directory and name them
# in OVERNIGHT_HANDLERS.
WORKDIR /srv/overnight

USER overnight
ENV OVERNIGHT_HOME=/var/lib/overnight

ENTRYPOINT ["overnight"]
CMD ["--help"]
