# The command `headrace` on CPU. For accelerators install an extra instead: see "Hardware" in README.md.
#   docker build -t headrace . && docker run --rm -v headrace:/data -v "$PWD:/config:ro" headrace run /config/run.toml
# The image of jobs in a work pool of Prefect's, which brings its own command:
#   docker build --target job -t headrace-job .
FROM python:3.12-slim AS job
# What the tools `python` and `shell` are confined with, where the host lets a container make namespaces.
RUN apt-get update && apt-get install --yes --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/headrace
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt . \
    && useradd --create-home headrace && mkdir /data && chown headrace /data
USER headrace
WORKDIR /data
ENV HEADRACE_ROOT=/data PYTHONSAFEPATH=1

FROM job
VOLUME /data
ENTRYPOINT ["headrace"]
