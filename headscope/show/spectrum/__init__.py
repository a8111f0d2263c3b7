"""How ``spectrum`` looks: tables, sentences, figures, files."""
