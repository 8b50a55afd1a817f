"""Root filesystem images: each recipe is built once, into a folder that is named by the SHA-256 of its inputs.

- A *recipe* (TOML) describes the content of an image; ``recipes/`` has the built-in ones.
- An *image* is the result of building a recipe: a folder in the cache that never changes.
- The *guest layer* is the content of ``/.sandlot`` in every sandbox: the guest's own interpreter and the guest itself.
- A *root* is a folder that combines an image and a guest layer by hard links. Drivers start sandboxes from roots.

Build images with ``sandlot image build NAME`` in a shell, or with :class:`sandlot.images.store.ImageStore` in Python.
"""
