"""Fanlight's own preprocessing, for checkpoints described by an ImageProcessingConfig.

image_processing_config   the description: read from JSON, contradictions refused
pixel_statistics          mean and standard deviation of pixels, and where they were found
dynamic_resolution        size of a picture or frame -> grid of patches within a budget
tiling                    size of a picture -> columns and rows of square tiles
anyres                    size of a picture -> LLaVA-NeXT's tiles, padding and features
sampling                  frames of a clip -> the ones that are shown
pixels                    resizing, padding and normalising
patches                   pixels -> rows of patches, in either order; the 2 x 2 pixel shuffle
grid_pixels, tile_pixels  all of this for towers that take patches, and for those that take tiles
processor                 the MediaProcessor of such a checkpoint
"""
