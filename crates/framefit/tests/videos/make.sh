#!/bin/sh
# Makes the test videos and what FFmpeg decodes from them (FFmpeg 5.1.9 of Debian 12, with libx264 and libx265):
#
#   *.mp4, *.mov   videos; where nothing else is said, frame N shows the number N as bars: bit i of N is the bar from
#                  column 8i to 8i+7, white for 1
#   grey.txt       per video and frame: FFmpeg's framecrc (Adler-32 from 0) of the frame as `-pix_fmt gray`
#   rgb/*.png      one frame as `-pix_fmt rgb24`
#
# Run in this folder. No video is larger than 30 KB.
set -eu
cd "$(dirname "$0")"
rm -rf ./*.mp4 ./*.mov ./*.m4a grey.txt rgb
mkdir rgb

ff() { ffmpeg -v error -nostdin -y -fflags +bitexact "$@"; }
bars="geq=lum='16+219*mod(floor(N/pow(2,floor(X/8))),2)':cb=128:cr=128"
# encode FRAMES SIZE FILE OPTIONS...
encode() {
    frames=$1 size=$2 file=$3
    shift 3
    ff -f lavfi -i "color=black:s=$size:r=25,format=yuv420p,$bars" -frames:v "$frames" \
        -c:v libx264 -threads 1 -preset medium "$@" -map_metadata -1 "$file"
}

encode 40 64x48 bframes.mp4 -g 12 -bf 3 -x264-params b-pyramid=normal
encode 40 50x38 cropped.mp4 -g 16
encode 40 64x48 opengop.mp4 -g 10 -keyint_min 10 -bf 3 -sc_threshold 0 -x264-params open-gop=1:scenecut=0
encode 40 64x48 slices.mp4 -g 12 -slices 3
encode 40 64x48 baseline.mp4 -g 12 -profile:v baseline
encode 40 64x48 interlaced.mp4 -g 12 -flags +ildct+ilme -x264-params interlaced=1
encode 40 64x48 fragmented.mp4 -g 8 -movflags frag_keyframe+empty_moov+default_base_moof
encode 40 64x48 faststart.mp4 -g 40 -movflags +faststart
encode 40 64x48 high10.mp4 -g 12 -pix_fmt yuv420p10le
encode 40 64x48 high422.mp4 -g 12 -pix_fmt yuv422p
encode 8 64x48 chroma444.mp4 -pix_fmt yuv444p
encode 8 64x48 lossless.mp4 -qp 0
# The cut is not at a key frame: the packets before it are there, and the edit list hides them.
ff -ss 0.72 -i bframes.mp4 -c copy -map_metadata -1 editlist.mp4
for angle in 90 180 270; do
    ff -i cropped.mp4 -c copy -map_metadata -1 -frames:v 8 -metadata:s:v rotate=$angle "rotated$angle.mov"
done
# Two video tracks, behind a sound track.
ff -f lavfi -i sine=d=0.2 -i bframes.mp4 -i cropped.mp4 -map 0:a -map 1:v -map 2:v -c:v copy -c:a aac \
    -map_metadata -1 twotracks.mp4
ff -f lavfi -i sine=d=0.2 -c:a aac -map_metadata -1 sound.m4a
ff -f lavfi -i "color=black:s=64x48:r=25,format=yuv420p,$bars" -frames:v 8 -c:v libx265 -x265-params log-level=none \
    -map_metadata -1 hevc.mp4
# Colours: FFmpeg's test picture.
ff -f lavfi -i testsrc2=s=64x48:r=25 -frames:v 4 -c:v libx264 -threads 1 -qp 10 -pix_fmt yuv420p -map_metadata -1 \
    colour601.mp4
ff -f lavfi -i testsrc2=s=64x48:r=25 -frames:v 4 -vf scale=out_color_matrix=bt709:out_range=full -c:v libx264 \
    -threads 1 -qp 10 -pix_fmt yuvj420p -colorspace bt709 -color_range pc -map_metadata -1 colour709full.mp4

for file in *.mp4 *.mov; do
    case $file in chroma444.mp4 | lossless.mp4 | hevc.mp4 | high10.mp4 | high422.mp4) continue ;; esac
    ffmpeg -v error -nostdin -i "$file" -map 0:v:0 -vsync passthrough -pix_fmt gray -f framecrc - |
        awk -F', *' -v file="$file" '!/^#/ { print file, $6 }' >>grey.txt
done
for file in colour601.mp4 colour709full.mp4 rotated90.mov; do
    ffmpeg -v error -nostdin -i "$file" -vf "select=eq(n\,2)" -frames:v 1 -pix_fmt rgb24 "rgb/${file%.*}.png"
done
