"""How ``rank`` looks: tables, sentences, figures."""
