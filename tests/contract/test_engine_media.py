"""What an engine is sent beside ids, asked of the server's own code; no image model runs here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

import gateway.local
from gateway.engine.codec import generate_body
from gateway.records import Generation, PolicyKind, PolicyRef, Sampling
from tests.fixtures_engine import engine_python
from tests.media import data_url, png, wav

pytestmark = pytest.mark.sglang

MARK = 9
STUBS = Path(gateway.local.__file__).parent / "stubs"

#: Run by the engine's own interpreter.
_PROGRAM = """
import json, sys
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.multimodal.processors.base_processor import BaseMultimodalProcessor
from sglang.srt.utils.common import load_image
body = json.load(sys.stdin)
request = GenerateReqInput(**body)
request.normalize_batch_and_arguments()
images = [load_image(one)[0].convert("RGB").getpixel((0, 0)) for one in request.image_data]
unfolded = BaseMultimodalProcessor._expand_input_ids(request.input_ids, [3, 2], 9)
print(json.dumps([request.is_single, request.contains_mm_input(), images,
                  len(request.audio_data), unfolded]))
"""


def test_the_server_takes_images_and_audio_beside_ids() -> None:
    body = generate_body(
        Generation(
            rid="a" * 32,
            input_ids=[1, MARK, 2, MARK, 3],
            sampling=Sampling(),
            policy=PolicyRef(lineage_id=UUID(int=1), version=0, kind=PolicyKind.BASE),
            images=(data_url(png(255)), data_url(png(0, 0, 255))),
            audio=(data_url(wav(1), "audio/wav"),),
        )
    )
    done = subprocess.run(
        [engine_python(), "-c", _PROGRAM],
        input=body.decode(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(STUBS), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    single, shown, images, clips, unfolded = json.loads(done.stdout.splitlines()[-1])
    assert (single, shown, clips) == (True, True, 1)
    assert images == [[255, 0, 0], [0, 0, 255]]
    # Each mark becomes as many ids as its image takes; all other ids stay as they were sent.
    assert unfolded == [1, MARK, MARK, MARK, 2, MARK, MARK, 3]
