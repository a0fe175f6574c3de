import com.google.rpc.Status;
import dev.ringline.inference.v1.GenerateRequest;
import dev.ringline.inference.v1.GenerateResponse;
import dev.ringline.inference.v1.InferenceServiceGrpc;
import dev.ringline.inference.v1.SamplingParams;
import dev.ringline.inference.v1.StoppingParams;
import dev.ringline.types.v1.FinishReason;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Asks the processor at the address given for an answer and for one that is refused, through generated stubs, and reads
 * both event by event. Prints the answer's text. Exits 1 if a rule of the contract was broken.
 */
public final class Smoke {
  private static final int MAX_TOKENS = 16;

  public static void main(String[] arguments) {
    ManagedChannel channel = NettyChannelBuilder.forTarget(arguments[0]).usePlaintext().build();
    try {
      System.out.print(answer(InferenceServiceGrpc.newBlockingStub(channel)));
      refused(InferenceServiceGrpc.newBlockingStub(channel));
    } finally {
      channel.shutdownNow();
    }
  }

  private static Iterator<GenerateResponse> ask(
      InferenceServiceGrpc.InferenceServiceBlockingStub stub, float temperature) {
    return stub.withWaitForReady()
        .withDeadlineAfter(60, TimeUnit.SECONDS)
        .generate(
            GenerateRequest.newBuilder()
                .setText("Once upon a time")
                .setSampling(SamplingParams.newBuilder().setTemperature(temperature))
                .setStopping(StoppingParams.newBuilder().setMaxTokens(MAX_TOKENS).setIgnoreEos(true))
                .build());
  }

  /** Reads a request to its end; returns its text. */
  private static String answer(InferenceServiceGrpc.InferenceServiceBlockingStub stub) {
    StringBuilder text = new StringBuilder();
    List<GenerateResponse.EventCase> seen = new ArrayList<>();
    int tokens = 0;
    for (Iterator<GenerateResponse> stream = ask(stub, 0); stream.hasNext(); ) {
      GenerateResponse response = stream.next();
      switch (response.getEventCase()) {
        case DELTA:
          check(response.getDelta().getFirstPosition() == tokens, "a delta does not follow " + tokens + " tokens");
          text.append(response.getDelta().getText());
          tokens += response.getDelta().getTokenIdsCount();
          continue;
        case CHOICE_FINISHED:
          FinishReason reason = response.getChoiceFinished().getFinishReason();
          check(reason == FinishReason.FINISH_REASON_LENGTH, "it ended with " + reason);
          break;
        case REQUEST_FINISHED:
          int counted = response.getRequestFinished().getUsage().getCompletionTokens();
          check(counted == tokens && tokens == MAX_TOKENS, tokens + " tokens, of which " + counted + " are counted");
          break;
        default:
      }
      seen.add(response.getEventCase());
    }
    check(
        seen.equals(
            List.of(
                GenerateResponse.EventCase.ADMITTED,
                GenerateResponse.EventCase.STARTED,
                GenerateResponse.EventCase.CHOICE_FINISHED,
                GenerateResponse.EventCase.REQUEST_FINISHED)),
        "beside deltas there came " + seen);
    return text.toString();
  }

  /** A field is out of range: Refused is all that comes, and the call ends with the same status. */
  private static void refused(InferenceServiceGrpc.InferenceServiceBlockingStub stub) {
    Iterator<GenerateResponse> stream = ask(stub, -1);
    Status told = stream.next().getRefused().getStatus();
    try {
      stream.hasNext();
      check(false, "it was refused with " + told + ", and the call ended well");
    } catch (StatusRuntimeException end) {
      check(end.getStatus().getCode() == io.grpc.Status.Code.INVALID_ARGUMENT, "the call ended with " + end);
      check(told.getMessage().equals(end.getStatus().getDescription()), told + " is not " + end);
    }
  }

  private static void check(boolean holds, String problem) {
    if (!holds) throw new IllegalStateException(problem);
  }
}
