"""What type checkers must refuse: one mistake on each line that says so."""

import ringline

with ringline.Client(timeout="soon") as client:  # wrong
    answer = client.generate("Once", max_tokens="many")  # wrong
    client.generate("Once", max_token=3)  # wrong
    client.stream(b"Once")  # wrong
    print(answer.txt)  # wrong
    message: ringline.Message = {"content": "no role"}  # wrong
    late: int = answer.text  # wrong
