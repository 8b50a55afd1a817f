"""What a sandbox starts from: recipes, built once into content-addressed root file systems.

- A *recipe* (TOML) says what an image holds; ``recipes/`` has the built-in ones.
- An *image* is a recipe, built: a folder in the cache, never changed once it has its name.
- The *guest layer* is what lives at ``/.sandlot`` in every sandbox: the guest's own interpreter and the guest itself.
- A *root* is an image and a guest layer put together by hard links: what a driver is given.

``python -m sandlot.images build NAME`` builds from a shell; :class:`sandlot.images.store.ImageStore` from a program.
"""
