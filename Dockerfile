# One image for every service of docker-compose.yml; the commands are the documented ones.
FROM python:3.13-slim

COPY . /src
RUN pip install --no-cache-dir /src \
    && rm -rf /src \
    && useradd --create-home --uid 10001 tasks

# Celery reads celeryconfig.py of the folder that it starts in; handlers are found there, too.
WORKDIR /app
COPY celeryconfig.py examples/hello.py ./
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1

USER tasks
CMD ["celery", "-A", "tasks_app", "worker"]
