# litegpu on a machine without a GPU: PoCL plays the OpenCL device. docs/docker.md has the commands.
FROM python:3.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends pocl-opencl-icd \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[runtime,opencl,tools]" \
    && useradd --create-home litegpu
USER litegpu
WORKDIR /home/litegpu
ENTRYPOINT ["litegpu"]
CMD ["devices"]
