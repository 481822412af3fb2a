"""`sublimate probe`: what this machine offers and whether the model will run well here."""
