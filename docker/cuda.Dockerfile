# litegpu on an NVIDIA GPU. The host's driver comes in through the NVIDIA Container Toolkit, and
# the compiler of kernels as a wheel, so that no CUDA image is needed. docs/docker.md has the commands.
FROM python:3.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[runtime,cuda,tools]" \
    && useradd --create-home litegpu
# What the toolkit hands in: the driver (compute), and nvidia-smi and NVML (utility).
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER litegpu
WORKDIR /home/litegpu
ENTRYPOINT ["litegpu"]
CMD ["devices"]
