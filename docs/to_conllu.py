"""Write the trees of spaCy as CoNLL-U: python to_conllu.py MODEL TEXT > FILE."""

import sys

import spacy

nlp = spacy.load(sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as lines:
    for doc in nlp.pipe(line.strip() for line in lines if line.strip()):
        for sentence in doc.sents:
            words = [token for token in sentence if not token.is_space]
            place = {token.i: index for index, token in enumerate(words, start=1)}
            print("# text =", sentence.text.strip())
            for token in words:
                is_root = token.head == token
                head = 0 if is_root else place[token.head.i]
                relation = "root" if is_root else token.dep_
                relation = {"dobj": "obj"}.get(relation, relation)  # as Universal Dependencies says
                space = "_" if token.whitespace_ else "SpaceAfter=No"
                row = (place[token.i], token.text, token.lemma_, token.pos_, token.tag_, "_")
                print(*row, head, relation, "_", space, sep="\t")
            print()
