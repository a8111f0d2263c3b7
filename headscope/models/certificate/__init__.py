"""The proof that our attention equals the model's, layer by layer, and its values.

``certificate.py`` runs the probes and gives the verdict, ``evidence.py`` compares what one layer
showed, ``agreement.py`` has the measures, ``validation.py`` the values that come out.
"""
