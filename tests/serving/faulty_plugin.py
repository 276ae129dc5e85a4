"""A vLLM plugin that breaks the engine on purpose; FAULT says how. Copied into a directory of its own."""

import os


def install():
    """Break the running vLLM in this process."""
    {"narrow-row": narrow_row, "double-append": double_append}[os.environ["FAULT"]]()


def narrow_row():
    """Make every row of the worker one entry too narrow."""
    from vllm.v1.worker import block_table

    width = block_table.get_block_table_width
    block_table.get_block_table_width = lambda *args, **kwargs: width(*args, **kwargs) - 1


def double_append():
    """Append a resumed request's blocks twice."""
    from vllm.v1.worker.gpu_input_batch import InputBatch

    add_request = InputBatch.add_request

    def twice(self, request):
        row = add_request(self, request)
        if request.output_token_ids:
            self.block_table.append_row(request.block_ids, self.req_id_to_index[request.req_id])
        return row

    InputBatch.add_request = twice
