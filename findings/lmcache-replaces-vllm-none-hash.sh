#!/bin/sh
# In the process of a vLLM engine, making LMCache's token database changes the hashes of vLLM's own blocks.
#
# lmcache 0.5.6 and vllm 0.33.0, Python 3.11, no GPU. vLLM seeds the chain of its block hashes with a global,
# kv_cache_utils.NONE_HASH. With its default sha256 that is the same in each process, so that stores on drives and
# routers know blocks again after a restart. LMCache's ChunkedTokenDatabase (its in-process mode) calls vLLM's
# init_none_hash with its own function, by default Python's builtin hash: the global becomes an int, which is random
# without PYTHONHASHSEED, and the same tokens have another block hash in vLLM from then on.
#
# Seen 2026-11-28:
#   vLLM alone:  NONE_HASH is bytes, equal in two processes; so is the hash of the block (1, 2, 3, 4)
#   with LMCache: NONE_HASH is an int, another in each process; so is the hash of that block
#   with LMCache and pre_caching_hash_algorithm=sha256_cbor: NONE_HASH is bytes, equal in two processes
#
# What follows for a store whose keys are vLLM's hashes: set sha256_cbor in LMCache, or PYTHONHASHSEED, before both run
# in one process. Takes 5 GB in a temporary folder, and minutes. Fails if what was seen changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
pip() { "$python" -m pip "$@"; }

cat >"$folder/packages.txt" <<'PACKAGES'
aiohappyeyeballs==2.7.1
aiohttp==3.14.5
aiosignal==1.4.0
annotated-doc==0.0.7
annotated-types==0.8.0
anyio==4.16.0
apache-tvm-ffi==0.1.15.post2
attrs==26.1.0
cachetools==8.0.1
cbor2==6.3.0
certifi==2026.10.18
charset-normalizer==3.5.2
cloudpickle==3.1.2
dill==0.4.1
fastapi==0.165.0
filelock==4.2.12
frozenlist==1.8.0
h11==0.16.0
httpcore2==2.16.2
httpx2==2.16.2
huggingface_hub==2.4.0
idna==3.20
llguidance==1.9.1
llvmlite==0.50.0
lmcache==0.5.6
msgspec==0.22.0
multidict==7.2.1
numba==0.68.1
numpy==2.4.6
openai==3.54.0
openai-harmony==0.0.8
opentelemetry-api==1.45.2
orjson==3.13.0
packaging==26.3
partial-json-parser==0.2.1.1.post7
pillow==13.0.0
prometheus_client==0.26.0
propcache==0.5.4
psutil==7.2.2
py-cpuinfo==9.0.0
pybase64==1.5.1
pydantic==2.14.3
pydantic_core==2.50.4
PyYAML==6.0.3
pyzmq==27.3.0
regex==2026.11.15
requests==2.34.2
safetensors==0.8.0
sentencepiece==0.2.3
sniffio==1.3.1
starlette==1.10.0
tokenizers==0.23.3
torchvision==0.29.2
tqdm==4.70.1
transformers==5.23.0
truststore==0.10.5
typing-inspection==0.4.5
urllib3==2.8.0
uvloop==0.23.0
xgrammar==0.2.8
yarl==1.25.1
PACKAGES
pip install --quiet --no-cache-dir torch==2.15.0 'setuptools<81'
pip install --quiet --no-cache-dir --no-deps --requirement "$folder/packages.txt"
# Only the Python of vLLM's wheel: the rest is code for GPUs.
pip download --quiet --no-cache-dir --no-deps vllm==0.33.0 --dest "$folder/wheel"
"$python" - "$folder/wheel" <<'UNPACK'
import pathlib, sys, sysconfig, zipfile
(wheel,) = pathlib.Path(sys.argv[1]).glob("vllm-*.whl")
with zipfile.ZipFile(wheel) as packed:
    names = [n for n in packed.namelist() if n.endswith((".py", ".json", "/METADATA", "/entry_points.txt"))]
    packed.extractall(sysconfig.get_path("purelib"), names)
UNPACK
rm -r "$folder/wheel"

cat >"$folder/hashes.py" <<'HASHES'
import sys
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

sha256 = get_hash_fn_by_name("sha256")
kv_cache_utils.init_none_hash(sha256)
if len(sys.argv) > 1:
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.token_database import ChunkedTokenDatabase

    config = LMCacheEngineConfig.from_defaults(pre_caching_hash_algorithm=sys.argv[1])
    ChunkedTokenDatabase(config, None)
seed = kv_cache_utils.NONE_HASH
block = kv_cache_utils.hash_block_tokens(sha256, None, (1, 2, 3, 4))
print("HASH", type(seed).__name__, block.hex())
HASHES
unset PYTHONHASHSEED
hashes() { "$python" "$folder/hashes.py" "$@" 2>/dev/null | grep '^HASH'; }

alone=$(hashes)
[ "$alone" = "$(hashes)" ] || { echo "vLLM alone: hashes differ between processes"; exit 1; }
with=$(hashes builtin)
[ "$with" != "$(hashes builtin)" ] || { echo "with LMCache: hashes are equal in two processes"; exit 1; }
same=$(hashes sha256_cbor)
[ "$same" = "$(hashes sha256_cbor)" ] || { echo "with sha256_cbor: hashes differ"; exit 1; }
echo "vLLM alone:           $alone"
echo "with LMCache:         $with"
echo "with its sha256_cbor: $same"
case "$alone/$with/$same" in
"HASH bytes "*/"HASH int "*/"HASH bytes "*) echo "as seen" ;;
*) echo "changed"; exit 1 ;;
esac
