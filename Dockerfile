# headscope with the versions it is tested with, torch without CUDA, and the weights of `demo`.
#
#   docker build -t headscope .
#   docker run --rm -v "$PWD:/work" headscope report ./my-bert -o out
#
# Files in /work are written by the user 1000; give --user "$(id -u):$(id -g)" for another.
FROM python:3.11-slim

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1

WORKDIR /src
# torch first: the layer that takes longest changes least.
COPY configs/constraints.txt configs/
RUN pip install -c configs/constraints.txt setuptools && \
    pip install --no-deps --index-url https://download.pytorch.org/whl/cpu -c configs/constraints.txt torch

# Extras of pyproject.toml, such as demo,export.
ARG EXTRAS=demo
COPY pyproject.toml README.md LICENSE ./
COPY headscope/ headscope/
RUN pip install --no-build-isolation -c configs/constraints.txt ".[${EXTRAS}]"

RUN useradd --create-home --uid 1000 headscope
USER headscope
# Where caches may be written whoever runs it. To keep models of the hub: -v "$HOME/.cache/huggingface:/tmp/huggingface"
ENV MPLCONFIGDIR=/tmp/matplotlib \
    HF_HOME=/tmp/huggingface
WORKDIR /work
ENTRYPOINT ["headscope"]
CMD ["--help"]
