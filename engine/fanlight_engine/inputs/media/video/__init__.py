"""Clips: from an encoded file, or from pictures, to chosen frames with their times, within limits.

    formats            which files are clips, told by their first bytes
    sampling           which frames of a clip: the window of the request, and even spreading
    decode             a file's facts and frames, from a decoder process
    protocol           what is said to that process
    decoder_process    the process: opens the file with PyAV, within limits of memory and time
    container          a file opened within limits, and measured without decoding its pictures
    reader             its chosen frames
    frames             a clip that comes as pictures
    manifest           a clip that comes as a list of files on the server

FFmpeg reads a file in a process of its own. A few hundred bytes can make it fill gigabytes, or fail in ways that end
the process: there, that is one refused clip. Nothing is imported here, so that the decoder process starts quickly.
"""
