"""Where packages are kept: files on a disk that services share, and the threads that read and write them."""
