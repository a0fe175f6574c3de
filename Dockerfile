# The images of the services, one target each:
#
#   docker build --target processor -t ringline-processor .
#   docker build --target detokenizer -t ringline-detokenizer .
#   docker build --target gateway -t ringline-gateway .
#   docker build --target engine -t ringline-engine .
#
# BASE_IMAGE       any Debian-like image with Python 3.11, 3.12 or 3.13, venv, pip and apt
# DEVICE           cpu, or cuda for an engine on NVIDIA GPUs
# TORCH_INDEX_URL  package index that torch alone comes from, such as PyTorch's own of CPU builds; default: pip's own
#                  index, where torch for x86-64 is the build for CUDA, which computes on a CPU too but has gigabytes
# EXTRAS           what else an engine installs of pyproject.toml's extras: ray, for an engine on several hosts
#
# BuildKit is not needed; without it, too, a CPU tier is built without anything of the engine, as its stages come first.
ARG BASE_IMAGE=python:3.11-slim-bookworm


# What every service installs. Packages come before sources, so that a change of these installs nothing else anew.
FROM ${BASE_IMAGE} AS packages
ENV PIP_CONSTRAINT=/build/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python -m venv --without-pip /opt/ringline
COPY constraints.txt pyproject.toml ./
RUN python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *(line for name in ("tracing", "smg") for line in p["optional-dependencies"][name]), sep="\n")' \
      | grep -v '^ringline' > packages.txt \
    && pip --python /opt/ringline install -r packages.txt


# Without the bundled model, which a CPU tier does not serve.
FROM packages AS cpu-tier
COPY . .
RUN rm -r checkpoints && pip --python /opt/ringline install --no-deps ./clients/python .


# Nothing in an image is written to at run time: the root file system may be read-only. Ports are open to the outside of
# the container, which decides who reaches them. Volumes mounted below /certs take their owner from these directories.
FROM ${BASE_IMAGE} AS runtime
RUN groupadd --gid 10001 ringline && useradd --uid 10001 --gid ringline --no-create-home --shell /bin/false ringline \
    && install -d -o ringline -g ringline /certs/authority /certs/processor /certs/detokenizer /certs/engine /certs/gateway
ENV HOME=/tmp \
    PATH=/opt/ringline/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RINGLINE_HOST=0.0.0.0
COPY deploy/healthcheck /usr/local/bin/healthcheck
USER 10001:10001
STOPSIGNAL SIGTERM


FROM runtime AS processor
COPY --from=cpu-tier /opt/ringline /opt/ringline
EXPOSE 50051 60051
HEALTHCHECK --interval=5s --timeout=10s --start-period=60s --retries=6 CMD ["healthcheck", "60051"]
ENTRYPOINT ["ringline", "supervise", "processor"]


FROM runtime AS detokenizer
COPY --from=cpu-tier /opt/ringline /opt/ringline
EXPOSE 50071 60071
HEALTHCHECK --interval=5s --timeout=10s --start-period=60s --retries=6 CMD ["healthcheck", "60071"]
ENTRYPOINT ["ringline", "supervise", "detokenizer"]


FROM runtime AS gateway
COPY --from=cpu-tier /opt/ringline /opt/ringline
EXPOSE 8000 18000
HEALTHCHECK --interval=5s --timeout=10s --start-period=60s --retries=6 CMD ["healthcheck", "18000"]
ENTRYPOINT ["ringline", "supervise", "gateway"]


# Torch first and from an index of its own. For CUDA it wants the one triton that it was made with, which is the pinned
# one, by which the kernels are compiled in tests: another ends the build here.
FROM packages AS engine-packages
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
ARG DEVICE=cpu
ARG TORCH_INDEX_URL
RUN case "$DEVICE" in cpu | cuda) ;; *) echo "DEVICE is cpu or cuda"; exit 1 ;; esac \
    && pip --python /opt/ringline install --no-deps ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch
ARG EXTRAS
RUN python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*(line for name in sys.argv[1:] for line in p["optional-dependencies"][name]), sep="\n")' \
      engine $EXTRAS > engine.txt \
    && pip --python /opt/ringline install -r engine.txt
RUN test "$DEVICE" = cpu || /opt/ringline/bin/python -c 'import sys, torch; torch.version.cuda or sys.exit("this torch is not built for CUDA: see TORCH_INDEX_URL")'


FROM engine-packages AS engine-installed
COPY . .
RUN pip --python /opt/ringline install --no-deps ./clients/python . \
    && /opt/ringline/bin/python -P -m engine_core.kernels.build


# On a GPU, Triton makes its kernels' launchers with a C compiler, below /cache.
FROM runtime AS engine
ARG DEVICE=cpu
USER root
RUN test "$DEVICE" = cpu || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; }
RUN install -d -o ringline -g ringline /models /cache
COPY --from=engine-installed /opt/ringline /opt/ringline
RUN mkdir /usr/share/ringline \
    && ln -s /opt/ringline/lib/python3*/site-packages/services/checkpoints/tiny /usr/share/ringline/tiny \
    && test -f /usr/share/ringline/tiny/config.json
USER 10001:10001
ENV HF_HOME=/models \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    RINGLINE_MODEL=/usr/share/ringline/tiny \
    TRITON_CACHE_DIR=/cache
EXPOSE 50061 60061
HEALTHCHECK --interval=5s --timeout=10s --start-period=600s --retries=6 CMD ["healthcheck", "60061"]
ENTRYPOINT ["ringline", "supervise", "engine"]
