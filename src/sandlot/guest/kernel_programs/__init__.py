"""Programs of the kernels, which run the cells of code contexts. There is one folder for each language.

The guest starts each kernel with a socket for messages (``docs/design/0011-kernels.md``) and with pipes to the guest as standard output and
standard error. The programs are shipped as source code. The kernels of Python, of JavaScript and TypeScript, and of R
run on interpreters of the image. The bash kernel runs on the guest's Python interpreter, and so does the program that starts R.
"""
