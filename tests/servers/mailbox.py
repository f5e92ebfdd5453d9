"""A mailbox behind stdio whose tools have names that a careless program takes for reading; it writes a line per call to
the file named by MAILBOX_CALLS."""

import os, sys

from mcp.server.mcpserver import MCPServer

READING = {
    "list_labels": "Lists the labels.",
    "get_message": "One message with subject, sender and label.",
    "search_messages": "Finds messages by a word of their subject.",
    "describe": "",
}
WRITING = {
    "get_or_create_label": "Gets a label, making it where there is none.",
    "get_rid_of_label": "Gets rid of a label for ever.",
    "getLabelDelete": "",
    "search_replace": "Searches and replaces.",
    "puppeteer_evaluate": "",
    "user_info_update": "",
    "get_invitation": "Get an invitation, which will be sent to the address.",
    "find_and_zork": "",
    "list_purge": "Lists what it purges.",
    "get_next": "Takes the next message out of the queue.",
    "check_in": "",
    "fetch_mail": "Fetches the mail and marks it as read.",
    "read_and_ack": "",
    "lookup_or_add": "",
    "view_toggle": "",
    "count_reset": "",
    "query": "Runs a query.",
    "frobnicate": "",
    "label_set": "",
    "messages.trash": "",
    "show_then_archive": "",
    "retrieve_message_forward": "",
    "compare_and_swap": "",
    "listFlush": "",
}


def main():
    server = MCPServer("mailbox", log_level="CRITICAL")

    def add(name: str, description: str) -> None:
        def tool(word: str) -> dict:
            with open(os.environ["MAILBOX_CALLS"], "a") as calls:
                calls.write(name + "\n")
            return {"label": "Invoices", "unread": 12}

        server.tool(name=name, description=description)(tool)

    for name, description in (READING | WRITING).items():
        add(name, description)
    server.run()


if __name__ == "__main__":
    sys.exit(main())
