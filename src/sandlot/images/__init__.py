"""Root filesystem images: recipes that are built once into content-addressed folders.

- A *recipe* (TOML) describes the content of an image; ``recipes/`` has the built-in ones.
- An *image* is a built recipe: a folder in the cache, which never changes after it has its final name.
- The *guest layer* is the content of ``/.sandlot`` in every sandbox: the guest's own interpreter and the guest itself.
- A *root* is an image and a guest layer, combined by hard links. Drivers start sandboxes from it.

``python -m sandlot.images build NAME`` builds images from a shell, :class:`sandlot.images.store.ImageStore` from Python.
"""
