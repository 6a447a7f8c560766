# One image for every service of docker-compose.yml; the commands are the documented ones. All that
# is installed is pinned with hashes, and comes as wheels.
FROM python:3.13-slim AS build
COPY requirements/image.txt /src/requirements/
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --require-hashes -r /src/requirements/image.txt
COPY . /src
RUN /venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation /src

FROM python:3.13-slim
COPY --from=build /venv /venv
RUN useradd --create-home --uid 10001 tasks

# Celery reads celeryconfig.py of the folder that it starts in; handlers are found there, too.
WORKDIR /app
COPY celeryconfig.py examples/hello.py ./
ENV PATH=/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1

# By number: Kubernetes cannot tell whether a name is root.
USER 10001
CMD ["celery", "-A", "tasks_app", "worker"]
