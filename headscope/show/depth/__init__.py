"""How ``depth`` looks: tables, sentences, figures."""
