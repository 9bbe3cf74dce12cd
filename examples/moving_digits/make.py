"""Makes the moving-digits recordings and their labels, in the folder of this file.

Handwritten digits move over a 64x64 frame whose edges wrap round. The motion (left, right, up, down or
still) changes about once a second. Needs numpy, scikit-learn and the program ffmpeg with libx264.

The pixels and the labels depend on SEED alone; the bytes of the recordings also on ffmpeg's version.
"""

import argparse
import csv
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

SEED = 20
FRAMES_PER_SECOND = 25
SIDE = 64  # height and width of a frame, pixels
TRAINING_RECORDINGS = 8
VALIDATION_RECORDINGS = 2
FRAMES_PER_RECORDING = 1000  # at least: a recording ends with the motion it is in
SEGMENT_FRAMES = (20, 35)  # shortest and longest time between two changes of motion
CLIP_FRAMES = 16
CLIP_STRIDE = 6
DIGITS_AT_ONCE = 2
SPEEDS = (1, 2)  # pixels per frame; whole numbers, so that no frame is blurred along its motion

# (down, right) in pixels per frame, at speed 1
MOTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0), "still": (0, 0)}


@dataclass
class Segment:
    """Frames first..end of a recording, all with one motion."""

    first: int
    end: int
    label: str
    speed: int


def enlarge(digit):
    """[8,8] of 0..16 -> [16,16] of 0..1, bilinear, zero outside."""
    padded = np.pad(digit / 16.0, 1)
    at = (np.arange(16) + 0.5) / 2 - 0.5 + 1
    low = np.floor(at).astype(int)
    part = at - low
    rows = padded[low] * (1 - part)[:, None] + padded[low + 1] * part[:, None]
    return rows[:, low] * (1 - part) + rows[:, low + 1] * part


def make_segments(rng):
    """Motions in random order, each equally often, no two neighbours alike."""
    segments, queue, first = [], [], 0
    while first < FRAMES_PER_RECORDING:
        if not queue:
            queue = list(rng.permutation(list(MOTIONS)))
            if segments and queue[0] == segments[-1].label:
                queue = queue[1:] + queue[:1]
        end = first + int(rng.integers(SEGMENT_FRAMES[0], SEGMENT_FRAMES[1] + 1))
        segments.append(Segment(first, end, str(queue.pop(0)), int(rng.choice(SPEEDS))))
        first = end
    return segments


def make_background(rng):
    """[64,64]: an even grey with soft blotches, which also wrap round."""
    coarse = rng.normal(size=(SIDE, SIDE))
    frequency = np.fft.fftfreq(SIDE)
    blur = np.exp(-(frequency[:, None] ** 2 + frequency[None, :] ** 2) / (2 * 0.04**2))
    smooth = np.fft.ifft2(np.fft.fft2(coarse) * blur).real
    return rng.uniform(40, 80) + 8 * smooth / smooth.std()


def draw(canvas, digit, top, left):
    """Lightens canvas [64,64] by a digit [16,16] whose corner lies at (top, left)."""
    rows = (top + np.arange(16)) % SIDE
    columns = (left + np.arange(16)) % SIDE
    where = np.ix_(rows, columns)
    canvas[where] = np.maximum(canvas[where], digit)


def make_frames(rng, segments, digits):
    """-> [T,64,64] u8. Each change of motion also exchanges the digit that has been there longest."""
    background = make_background(rng)
    brightness = rng.uniform(110, 150)
    noise = rng.uniform(1, 4)
    unused = iter(digits)
    shown = [next(unused) for _ in range(DIGITS_AT_ONCE)]
    place = rng.integers(SIDE, size=2)
    apart = rng.integers(20, SIDE - 20 + 1, size=2)

    frames = []
    for segment in segments:
        step = np.array(MOTIONS[segment.label]) * segment.speed
        for _ in range(segment.first, segment.end):
            place = (place + step) % SIDE
            ink = np.zeros((SIDE, SIDE))
            for index, digit in enumerate(shown):
                draw(ink, digit, *(place + index * apart))
            frame = background + brightness * ink + rng.normal(scale=noise, size=ink.shape)
            frames.append(np.clip(np.rint(frame), 0, 255).astype(np.uint8))
        shown = shown[1:] + [next(unused)]
        place = place + apart
        apart = rng.integers(20, SIDE - 20 + 1, size=2)
    return np.stack(frames)


def encode(frames, path):
    """frames: [T,64,64] u8, grey in full range -> an H.264 MP4 file in limited range."""
    luma = np.rint(16 + frames * (219 / 255)).astype(np.uint8)
    chroma = np.full(SIDE * SIDE // 2, 128, np.uint8).tobytes()
    raw = b"".join(plane.tobytes() + chroma for plane in luma)
    command = ["ffmpeg", "-loglevel", "error", "-y"]
    command += ["-f", "rawvideo", "-pixel_format", "yuv420p", "-video_size", f"{SIDE}x{SIDE}"]
    command += ["-framerate", str(FRAMES_PER_SECOND), "-i", "-"]
    command += ["-c:v", "libx264", "-preset", "slow", "-crf", "22", "-g", "25", "-threads", "1"]
    command += ["-fflags", "+bitexact", "-flags:v", "+bitexact"]
    command += ["-map_metadata", "-1", "-movflags", "+faststart", str(path)]
    subprocess.run(command, input=raw, check=True)


def clips_of(segment):
    """Starts of the clips that lie wholly inside a segment."""
    return range(segment.first, segment.end - CLIP_FRAMES + 1, CLIP_STRIDE)


def write_table(path, header, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)

    rng = np.random.default_rng(SEED)
    images = [enlarge(image) for image in load_digits().images]
    recordings = TRAINING_RECORDINGS + VALIDATION_RECORDINGS
    # Every recording has its own digits, so no handwriting sample is in both splits.
    own_digits = np.array_split(rng.permutation(len(images)), recordings)

    clips, frames = [], []
    for index in range(recordings):
        split = "train" if index < TRAINING_RECORDINGS else "val"
        name = f"digits_{index:02}.mp4"
        segments = make_segments(rng)
        encode(make_frames(rng, segments, [images[i] for i in own_digits[index]]), folder / name)
        for segment in segments:
            clips += [(name, t, t + CLIP_FRAMES, segment.label, split) for t in clips_of(segment)]
            frames += [(name, t, segment.label, split) for t in range(segment.first, segment.end)]

    write_table(folder / "clips.csv", ("video", "start_frame", "end_frame", "label", "split"), clips)
    write_table(folder / "frames.csv", ("video", "frame", "label", "split"), frames)


if __name__ == "__main__":
    main()
